"""All pictures: the one door to them. Each function returns a matplotlib figure; ``save`` writes it as PNG and SVG."""

from fedga.drawing.heatmap import LabelHeatmapText as LabelHeatmapText
from fedga.drawing.heatmap import label_heatmap as label_heatmap
from fedga.drawing.style import save as save
from fedga.report.curves import curves_from_rows as curves_from_rows
from fedga.report.curves import read_curves as read_curves
from fedga.report.figures.bars import demo_picture as demo_picture
from fedga.report.figures.bars import forgetting_bars as forgetting_bars
from fedga.report.figures.clients import before_after as before_after
from fedga.report.figures.lines import accuracy_curves as accuracy_curves
from fedga.report.figures.lines import ea_ratio_curves as ea_ratio_curves
