"""`vlprune methods` and `vlprune models`: what there is to choose from."""

from __future__ import annotations

from vlprune.cli.options import DEFAULT_KEEP, Wide
from vlprune.cli.terminal import console, print_text, show_steps


def methods(wide: Wide = False) -> None:
    """List the methods: what they need, what a budget comes to, their settings and presets."""
    from vlprune.cli.tables import needs_table, settings_table

    with show_steps("loading the methods", quiet=True):
        from vlprune.methods import get_method, list_methods

        known = [get_method(name, keep=DEFAULT_KEEP) for name in list_methods()]
    console().print(needs_table(known, n=576, layers=32, wide=wide))
    console().print(settings_table(known))


def models(wide: Wide = False) -> None:
    """List the model families that can be pruned."""
    from vlprune.cli.tables import families_table

    with show_steps("loading the families", quiet=True):
        from vlprune.models import list_families

        known = list_families()
    console().print(families_table(known, wide=wide))
    print_text(
        "The first of the positions is the default. --model takes 'pocket' (comes with vlprune), 'photo' (in a "
        "checkout), a folder, or a hub "
        "id, such as llava-hf/llava-1.5-7b-hf."
    )
