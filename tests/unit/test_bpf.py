"""The BPF assembler, its programs run by an interpreter of classic BPF."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.jail import seccomp
from tests.support.bpf import execute


@given(
    gaps=st.tuples(*[st.integers(0, 700)] * 3),
    constant=st.integers(0, 3),
    loaded=st.integers(0, 3),
    targets=st.tuples(*[st.sampled_from(["", "one", "two"])] * 2),
)
def test_a_jump_reaches_its_label_at_any_distance(
    gaps: tuple[int, int, int], constant: int, loaded: int, targets: tuple[str, str]
) -> None:
    """Conditions whose targets are out of reach of 8 bits still end where their labels are."""
    program = seccomp.Program()
    program.load(0)
    program.equal(constant, *targets)
    padding = iter(gaps)
    for name, answer in (("", 1), ("one", 2), ("two", 3)):
        if name:
            program.label(name)
        for _ in range(next(padding)):
            program.mask(0xFFFFFFFF)
        program.answer(answer)
    target = targets[0] if loaded == constant else targets[1]
    expected = {"": 1, "one": 2, "two": 3}[target]
    assert execute(program.assemble(), loaded.to_bytes(4, "little") + bytes(60)) == expected


def test_many_far_jumps_that_move_each_other_are_resolved() -> None:
    """Jumps inserted for one condition may push another's target out of reach."""
    program = seccomp.Program()
    program.load(0)
    for value in range(250):
        program.equal(value, f"answer {value}")
    program.answer(999)
    for value in range(250):
        program.label(f"answer {value}")
        program.answer(value)
    code = program.assemble()
    for value in range(250):
        assert execute(code, value.to_bytes(4, "little") + bytes(60)) == value
    assert execute(code, (251).to_bytes(4, "little") + bytes(60)) == 999


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        (["jump nowhere"], "no label 'nowhere'"),
        (["label here", "jump here"], "lies behind its jump"),
        (["label here", "label here"], "defined twice"),
        (["pad"] * 4097, "4097 instructions; the kernel takes 4096"),
    ],
)
def test_a_program_that_the_kernel_would_refuse_is_not_assembled(instructions: list[str], message: str) -> None:
    """Missing, repeated and backward labels and too long programs are errors of the author."""
    program = seccomp.Program()
    for instruction in instructions:
        verb, _, name = instruction.partition(" ")
        if verb == "jump":
            program.jump(name)
        elif verb == "label":
            program.label(name)
        else:
            program.mask(1)
    with pytest.raises(ValueError, match=message):
        program.assemble()
