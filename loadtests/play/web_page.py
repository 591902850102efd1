"""What is added to Locust's web page: a tab about streams with its charts, and the same as a CSV file.

The hooks are those that Locust documents for extending its page: `template_args`, routes of its Flask
application, and a change to what some routes answer.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from flask import Response, request

from loadtests.play.stream_stats import COLUMNS, Board

_SCRIPT = Path(__file__).with_name("streams.js")
_TAB = "streams"


def extend(web_ui: Any, board: Board, options: Any) -> None:
    """Shows `board` on the page. To be called before the page is served.

    Args:
        web_ui: Locust's.
        options: the command line's, which the page may change: `slo_pause` is drawn as a line.
    """
    web_ui.template_args |= {
        "extended_tabs": [{"title": "Streams", "key": _TAB}],
        "extended_tables": [
            {"key": _TAB, "structure": [{"key": key, "title": title} for key, title in COLUMNS.items()]}
        ],
        "extended_csv_files": [{"href": "./streams.csv", "title": "Download stream statistics CSV"}],
    }
    routes = {
        "streams.js": lambda: Response(_SCRIPT.read_text(encoding="utf-8"), mimetype="text/javascript"),
        "streams.json": lambda: {"slo_pause_s": options.slo_pause, **board.charts(time.monotonic())},
        "streams.csv": lambda: Response(board.csv(), mimetype="text/csv"),
    }
    for name, view in routes.items():
        guarded = web_ui.auth_required_if_enabled(view)
        web_ui.app.add_url_rule(f"{options.web_base_path}/{name}", name.replace(".", "_"), guarded)
    web_ui.app.after_request(lambda response: _extended(response, board))


def _extended(response: Response, board: Board) -> Response:
    if request.endpoint == "locust.request_stats" and response.is_json:
        table = [{"key": _TAB, "data": board.table()}]
        response.set_data(json.dumps({**(response.json or {}), "extended_stats": table}))
    elif request.endpoint == "locust.index":
        page = response.get_data(as_text=True)
        response.set_data(page.replace("</body>", '<script src="./streams.js"></script></body>'))
    return response
