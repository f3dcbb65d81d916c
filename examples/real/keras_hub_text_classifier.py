"""A BERT of KerasHub learns from strings whether a review is good: its task brings the tokenizer with it."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_hub
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "very", "the", "is"]


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train the classifier, and return it, and its history."""
    keras.utils.set_random_seed(0)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        keras_hub.models.BertTokenizer(WORDS), sequence_length=8
    )
    # `BertTextClassifier.from_preset("bert_tiny_en_uncased", num_classes=2)` downloads a trained one, with dropout.
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(WORDS), num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32, dropout=0.0
    )
    classifier = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor, dropout=0.0)
    classifier.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    sentences = ["a good film", "the film is bad", "good", "bad", "the film is very good", "a very bad film"] * 6
    labels = np.array([1, 0, 1, 0, 1, 0] * 6)
    fit = DistributedModel(classifier, ResourceSpec.local(cpus=2)).fit if distributed else classifier.fit
    history = fit(sentences, labels, batch_size=8, epochs=2, verbose=0)
    return classifier, history.history


if __name__ == "__main__":
    model, logged = train()
    print(logged, model.predict(["a film is good", "the bad film"], verbose=0))
