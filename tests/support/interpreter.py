"""Runs Triton kernels on a CPU."""

import ctypes
import dataclasses
import random
import threading
from types import SimpleNamespace

import numpy as np


def look_once():
    """Let the interpreter do once what it does at every call of a function: nothing but kernels may use Triton then."""
    from triton import language
    from triton.runtime import interpreter

    for package in (language, language.core):  # of which kernels use one, and Triton's own functions the other
        interpreter._patch_lang(SimpleNamespace(__globals__={"language": package}))
    interpreter._patch_lang = lambda function: SimpleNamespace(restore=lambda: None)
    numpy_type, types = interpreter._get_np_dtype, {}

    def known_type(one):
        if one.name not in types:
            types[one.name] = numpy_type(one)
        return types[one.name]

    interpreter._get_np_dtype = known_type
    builder = interpreter.interpreter_builder  # whose options look for overflow, but say nothing of any
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def launch_in_turns(kernel, grid, tensors, numbers, *, options, **constants):
    """`launch` for programs that wait for each other, as the interpreter, which runs them one by one, cannot.

    Each has a thread, but one runs at a time, until it reads a word that another may write; who goes on is drawn.
    """
    from triton.runtime import interpreter

    builder, draw = interpreter.interpreter_builder, random.Random(0)
    given = zip(kernel.arg_names, (*tensors, *numbers))
    arguments = {name: interpreter._implicit_cvt(value) for name, value in given} | constants
    programs = [(x, y, 0) for x in range(grid[0]) for y in range(grid[1])]
    turns, errors, reads = {program: threading.Semaphore(0) for program in programs}, [], 0

    def next_turn():
        if turns:
            builder.grid_idx = draw.choice(list(turns))
            turns[builder.grid_idx].release()

    def run(program):
        turns[program].acquire()
        try:
            if not errors:
                kernel.rewrite()(**arguments)
        except Exception as error:
            errors.append(error)
        del turns[program]
        next_turn()

    def inline_asm(asm, constraints, values, *more):
        nonlocal reads
        data = values[0].data
        if asm.startswith("ld.relaxed"):
            reads += 1
            assert reads < 100_000, "a program waits for a word that no other writes"
            program = builder.grid_idx
            next_turn()
            turns[program].acquire()
            assert not errors, "another program failed"
            data = np.array([ctypes.c_int64.from_address(int(address)).value for address in data])
        return SimpleNamespace(get_result=lambda i: interpreter.TensorHandle(data, values[0].dtype))

    interpreter._patch_lang(kernel.fn)
    builder.set_grid_dim(*grid, 1)
    builder.create_inline_asm = inline_asm
    threads = [threading.Thread(target=run, args=(program,)) for program in programs]
    try:
        for thread in threads:
            thread.start()
        next_turn()
        for thread in threads:
            thread.join()
    finally:
        del builder.create_inline_asm
    if errors:
        raise errors[0]
