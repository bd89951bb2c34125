"""Called by interpreters when they start: from 3.15 on by hiwater.start (PEP 829), before by hiwater.pth.

PYTEST_DONT_REWRITE: pytest would warn that it cannot rewrite a module that was loaded before it.
"""

import os


def start() -> None:
    from hiwater._os import trust

    if not trust.obeys_environment():
        return
    if "HIWATER_RUN" in os.environ:
        from hiwater._os import code_overhead

        code_overhead.note_start()
        from hiwater.recording import children

        children.start()
    elif os.environ.get("HIWATER") == "standby":
        from hiwater.recording import standby

        standby.begin_at_start()
    if "HIWATER_LINES" in os.environ:
        from hiwater.lines import children as children_with_lines

        children_with_lines.start()
