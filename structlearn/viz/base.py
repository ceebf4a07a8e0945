"""What every picture shares: the figure and the colours.

Colours are those of Okabe and Ito, told apart with every common colour vision; nothing is said by colour alone.
"""

from __future__ import annotations

from typing import Any

from structlearn.errors import DependencyError

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00"
LINES = ((BLACK, "o", "-"), (BLUE, "s", "-"), (ORANGE, "^", "--"), (GREEN, "D", ":"), (VERMILION, "v", "-."))


def figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure of that many inches; it saves itself without a display."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        remedy = "pip install 'structlearn[viz]'"
        raise DependencyError("matplotlib", "an installed package for drawing", "none", remedy) from error
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
