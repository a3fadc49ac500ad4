"""What tests of commands share."""

import pytest


@pytest.fixture
def refused(run):
    def check(*arguments):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        lines = [line for line in err.strip().splitlines() if not line.endswith(" ...")]  # but for what is being done
        assert len(lines) == 1
        assert lines[0].startswith("vlprune: ")
        assert lines[0][-1] in ".?"
        assert "Traceback" not in err
        return lines[0]

    return check
