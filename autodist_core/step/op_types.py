"""The types of operations that several stages tell apart: those that run functions, and those that read sizes only."""

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
CONDITIONALS = ("If", "StatelessIf")
CASES = ("Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")

FUNCTIONS = {
    **dict.fromkeys(CALLS, ("f",)), **dict.fromkeys(CONDITIONALS, ("then_branch", "else_branch")),
    **dict.fromkeys(CASES, ("branches",)), **dict.fromkeys(LOOPS, ("body", "cond")),
}  # fmt: skip
"""The attributes that name the functions that an operation runs."""
FIRST_ARGUMENT = {**dict.fromkeys(CALLS, 0), **dict.fromkeys((*CONDITIONALS, *CASES), 1)}
"""How many inputs stand before those that become the arguments of these functions, but for loops."""

OF_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
"""Operations that give the sizes of their inputs."""
WITHOUT_VALUES = OF_SHAPES | {"ZerosLike", "OnesLike"}
"""Operations whose results do not depend on the values of their inputs."""
