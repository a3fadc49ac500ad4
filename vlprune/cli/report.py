"""`vlprune report`: the results of several runs on one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlprune.cli.files import check_output_path
from vlprune.cli.options import Force


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of eval and study.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
    force: Force = False,
) -> None:
    """Put the tables and figures of runs into one HTML file that needs nothing else."""
    from vlprune.evaluation.report import write_report
    from vlprune.evaluation.run_folder import report_inputs

    inputs = [path for folder in folders for path in report_inputs(folder)]
    write_report(folders, check_output_path(out, *inputs, force=force))
    print(f"wrote {out}")
