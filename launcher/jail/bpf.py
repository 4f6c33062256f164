"""A small assembler for classic BPF, the language of seccomp filters (seccomp(2), Documentation/networking/filter.rst).

Conditional jumps reach 255 instructions ahead and no further. The assembler works with labels and puts an
unconditional jump behind a condition whose target is too far, so that who writes a filter need not count.

Launch path: nothing is imported.
"""

# BPF_LD | BPF_W | BPF_ABS, BPF_JMP | ..., BPF_ALU | BPF_AND | BPF_K, BPF_RET | BPF_K
LOAD = 0x20
AND = 0x54
RETURN = 0x06
JUMP = 0x05
JUMP_EQUAL = 0x15
JUMP_GREATER = 0x25
JUMP_GREATER_EQUAL = 0x35
JUMP_ANY_BIT = 0x45

REACH = 255
LIMIT = 4096
"""The kernel takes no longer program (BPF_MAXINSNS)."""


class Program:
    """Instructions and labels in order; `assemble` turns them into the kernel's bytes.

    A target is the name of a label that comes *later*, or "" for the next instruction.
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        """An empty program."""
        # (code, constant, target when true, target when false), or the name of a label.
        self._items: list[tuple[int, int, str, str] | str] = []

    def label(self, name: str) -> None:
        """Names the next instruction."""
        self._items.append(name)

    def load(self, offset: int) -> None:
        """Accumulator := the 32-bit word at `offset` of the data (`struct seccomp_data`)."""
        self._items.append((LOAD, offset, "", ""))

    def mask(self, bits: int) -> None:
        """Accumulator := accumulator & `bits`."""
        self._items.append((AND, bits, "", ""))

    def jump(self, target: str) -> None:
        """Goes to `target`."""
        self._items.append((JUMP, 0, target, ""))

    def equal(self, value: int, then: str = "", otherwise: str = "") -> None:
        """Goes to `then` when the accumulator is `value`, else to `otherwise`."""
        self._items.append((JUMP_EQUAL, value, then, otherwise))

    def greater(self, value: int, then: str = "", otherwise: str = "") -> None:
        """Goes to `then` when the accumulator is above `value` (unsigned), else to `otherwise`."""
        self._items.append((JUMP_GREATER, value, then, otherwise))

    def any_bit(self, bits: int, then: str = "", otherwise: str = "") -> None:
        """Goes to `then` when the accumulator has one of `bits`, else to `otherwise`."""
        self._items.append((JUMP_ANY_BIT, bits, then, otherwise))

    def answer(self, action: int) -> None:
        """Ends the program with `action` (SECCOMP_RET_*)."""
        self._items.append((RETURN, action, "", ""))

    def assemble(self) -> bytes:
        """The program as an array of `struct sock_filter`, little-endian.

        Raises:
            ValueError: a label is missing, defined twice or lies behind its jump, or the program is too long.
        """
        far: set[tuple[int, int]] = set()
        while True:
            positions, length = self._positions(far)
            if length > LIMIT:
                raise ValueError(f"{length} instructions; the kernel takes {LIMIT}")
            code, too_far = self._encode(positions, far)
            # Each added jump moves what follows; the set only grows, so this ends.
            if not too_far:
                return code
            far |= too_far

    def _positions(self, far: set[tuple[int, int]]) -> tuple[dict[str, int], int]:
        positions: dict[str, int] = {}
        here = 0
        for index, item in enumerate(self._items):
            if isinstance(item, str):
                if item in positions:
                    raise ValueError(f"label {item!r} is defined twice")
                positions[item] = here
            else:
                here += 1 + ((index, 0) in far) + ((index, 1) in far)
        return positions, here

    def _encode(self, positions: dict[str, int], far: set[tuple[int, int]]) -> tuple[bytes, set[tuple[int, int]]]:
        code = bytearray()
        too_far: set[tuple[int, int]] = set()
        here = 0
        for index, item in enumerate(self._items):
            if isinstance(item, str):
                continue
            operation, constant, *targets = item
            if operation == JUMP:
                code += _instruction(JUMP, 0, 0, _distance(positions, targets[0], here))
                here += 1
                continue
            long = [(index, side) in far for side in (0, 1)]
            behind = long[0] + long[1]
            offsets = [0, 0]
            for side, target in enumerate(targets):
                if long[side]:
                    offsets[side] = behind - 1 if side else 0
                elif target:
                    offsets[side] = _distance(positions, target, here)
                    if offsets[side] > REACH:
                        too_far.add((index, side))
                        offsets[side] = 0
                else:
                    offsets[side] = behind
            if operation in (LOAD, AND, RETURN):
                offsets = [0, 0]
            code += _instruction(operation, offsets[0], offsets[1], constant)
            here += 1
            for side, target in enumerate(targets):
                if long[side]:
                    code += _instruction(JUMP, 0, 0, _distance(positions, target, here))
                    here += 1
        return bytes(code), too_far


def _distance(positions: dict[str, int], target: str, here: int) -> int:
    if target not in positions:
        raise ValueError(f"no label {target!r}")
    distance = positions[target] - here - 1
    if distance < 0:
        raise ValueError(f"label {target!r} lies behind its jump")
    return distance


def _instruction(code: int, when_true: int, when_false: int, constant: int) -> bytes:
    # struct sock_filter { __u16 code; __u8 jt; __u8 jf; __u32 k; } in one little-endian number.
    return (code | when_true << 16 | when_false << 24 | constant << 32).to_bytes(8, "little")
