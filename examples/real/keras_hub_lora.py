"""LoRA fine-tunes a GPT-2 of KerasHub on strings: small matrices are trained, and the model itself is frozen."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_hub

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel

LETTERS = "abcdefghijklmnopqrstuvwxyz.Ġ"  # Ġ stands for a space in GPT-2's vocabulary
VOCABULARY = {token: index for index, token in enumerate(["<|endoftext|>", *LETTERS, "th", "the"])}


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Fine-tune the model, and return it, and its history."""
    keras.utils.set_random_seed(0)
    tokenizer = keras_hub.models.GPT2Tokenizer(VOCABULARY, merges=["t h", "th e"])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=16)
    # `GPT2CausalLM.from_preset("gpt2_base_en")` downloads a trained one, with dropout.
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=len(VOCABULARY), num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32,
        max_sequence_length=16, dropout=0.0,
    )  # fmt: skip
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor)
    backbone.enable_lora(rank=4)
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )

    sentences = ["the cat sat.", "the dog ran off.", "a bird.", "the end."] * 8
    fit = DistributedModel(model, ResourceSpec.local(cpus=2)).fit if distributed else model.fit
    history = fit(sentences, batch_size=8, epochs=2, verbose=0)
    return model, history.history


if __name__ == "__main__":
    model, logged = train()
    print(logged, f"{sum(weight.shape.num_elements() for weight in model.trainable_weights)} numbers were trained")
