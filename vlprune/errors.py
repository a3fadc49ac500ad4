"""The errors of vlprune's own; wrong arguments raise `ValueError` or `TypeError`."""


class UnsupportedModel(TypeError):
    """The model's class has no family in `vlprune.models`; the message names the nearest one."""


class MethodError(TypeError, ValueError):
    """A method of somebody else raised an error, which is the cause, or returned what does not fit; it is named."""


def describe_error(error: BaseException) -> str:
    """An error's kind and what it says, if anything, without the full stop.

    >>> describe_error(ValueError()), describe_error(ImportError("No module named 'x'."))
    ('ValueError', "ImportError: No module named 'x'")
    """
    said = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def is_fault(error: BaseException) -> bool:
    """Whether a caught error is a fault of the code that ran, or a panic of a library in Rust: not Ctrl-C, not an exit.

    >>> is_fault(ValueError()), is_fault(KeyboardInterrupt()), is_fault(SystemExit())
    (True, False, False)
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's own, a GPU's, or, as torch says it in a plain RuntimeError, a CPU's.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    torch_says = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and torch_says)


class UserError(Exception):
    """Something the user can put right; the message is one plain sentence, and the program ends with code 2."""
