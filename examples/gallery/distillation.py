"""Distillation: a small student learns from labels and from the softened predictions of a frozen teacher.

The model overrides `compute_loss`. Keras's own train step does the rest.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

CLASSES = 3


def classifier(filters: int, name: str) -> keras.Model:
    """Return a convolutional network, small or large."""
    return keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(filters, 3, strides=2, padding="same"), layers.LeakyReLU(0.2),
        layers.MaxPooling2D(2, strides=1, padding="same"),
        layers.Conv2D(2 * filters, 3, strides=2, padding="same"),
        layers.Flatten(), layers.Dense(CLASSES),
    ], name=name)  # fmt: skip


class Distiller(keras.Model):
    """Trains a student on a teacher's predictions."""

    def __init__(self, student: keras.Model, teacher: keras.Model) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False

    def compile(self, optimizer: Any, metrics: Any, student_loss: Any, distillation_loss: Any) -> None:
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        taught = ops.softmax(self.teacher(x, training=False) / 10.0)
        learnt = ops.softmax(y_pred / 10.0)
        distilled = self.distillation_loss(taught, learnt) * 10.0**2
        return 0.1 * self.student_loss(y, y_pred) + 0.9 * distilled

    def call(self, x: Any) -> Any:
        return self.student(x)


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(12)
    images, labels = rng.normal(size=(21, 8, 8, 1)), rng.integers(CLASSES, size=21)
    model = Distiller(classifier(2, "student"), classifier(6, "teacher"))
    model.compile(
        optimizer=keras.optimizers.Adam(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
        student_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        distillation_loss=keras.losses.KLDivergence(),
    )
    return model, {"x": images, "y": labels, "validation_split": 0.2}
