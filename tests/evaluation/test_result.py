"""Tables of results on terminals of all widths."""

import pytest
from rich.console import Console

from vlprune.evaluation.result import ResultTable

KINDS = ["exist", "color", "shape", "count", "digit", "where"]
WHY = "keep=600: the image has only 576 visual tokens, and this method keeps one in three of them at least."


def printed(table, width):
    console = Console(width=width)
    with console.capture() as found:
        console.print(table.to_table())
    return found.get()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_number_and_no_name_is_cut(width):
    columns = ["setting", "keep", "right", "relative to all tokens", *KINDS, "p", "why"]
    names = ["script:fusion=supplement", "relevance_top_k"]
    rows = [
        [
            name,
            str(keep),
            f"{90 + i}.4 [8{i}.0, 99.2]",
            f"10{i}.3 [98.7, 101.3]",
            *[f"{keep + i}.5"] * 6,
            "1.2e-05",
            WHY,
        ]
        for i, name in enumerate(names)
        for keep in (64, 16)
    ]
    text = printed(ResultTable("Accuracy", columns, rows, "Read this."), width)
    assert max(map(len, text.splitlines())) <= width
    cells = [cell.strip() for line in text.splitlines() for cell in line.split("│")]
    for row in rows:
        assert all(cell in cells for cell in row[:-1])
    assert all(word in text for word in [*WHY.split(), *KINDS, "Accuracy", "Read this."])
    assert text.count("Accuracy") == text.count("Read this.") == 1
    # each further table says whose numbers these are
    assert cells.count("script:fusion=supplement") == 2 * text.count("┏")
    assert (text.count("┏") == 1) == (width == 200)
