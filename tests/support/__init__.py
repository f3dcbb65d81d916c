"""What the numeric tests share: reference models, optimizers, and how two trainings are compared."""
