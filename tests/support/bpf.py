"""An interpreter of classic BPF, so that filters can be judged without installing them."""

from launcher.jail import bpf


def execute(program: bytes, data: bytes) -> int:
    """The answer of a program to 64 bytes of `struct seccomp_data`; an error where the kernel's checker objects."""
    assert len(program) % 8 == 0
    accumulator = 0
    here = 0
    while True:
        word = program[here * 8 : here * 8 + 8]
        assert len(word) == 8, "ran off the end of the program"
        code = int.from_bytes(word[:2], "little")
        when_true, when_false = word[2], word[3]
        constant = int.from_bytes(word[4:], "little")
        here += 1
        if code == bpf.RETURN:
            return constant
        if code == bpf.LOAD:
            assert constant % 4 == 0
            assert constant < 64
            accumulator = int.from_bytes(data[constant : constant + 4], "little")
        elif code == bpf.AND:
            accumulator &= constant
        elif code == bpf.JUMP:
            here += constant
        else:
            tests = {
                bpf.JUMP_EQUAL: accumulator == constant,
                bpf.JUMP_GREATER: accumulator > constant,
                bpf.JUMP_ANY_BIT: accumulator & constant != 0,
            }
            here += when_true if tests[code] else when_false
