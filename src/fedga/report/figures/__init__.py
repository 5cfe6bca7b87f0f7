"""All pictures: the one door to them. Each function returns a matplotlib figure; ``save`` writes it as PNG and SVG."""

from fedga.drawing.heatmap import label_heatmap
from fedga.drawing.heatmap_text import label_heatmap_text
from fedga.drawing.style import save
from fedga.report.curves import curves_from_rows, read_curves
from fedga.report.figures.bars import demo_picture, forgetting_bars
from fedga.report.figures.clients import before_after
from fedga.report.figures.lines import accuracy_curves, ea_ratio_curves

__all__ = [
    "accuracy_curves",
    "before_after",
    "curves_from_rows",
    "demo_picture",
    "ea_ratio_curves",
    "forgetting_bars",
    "label_heatmap",
    "label_heatmap_text",
    "read_curves",
    "save",
]
