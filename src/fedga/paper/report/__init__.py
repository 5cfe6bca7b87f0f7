"""The paper's tables and figures, made from a results folder and set beside what the paper printed."""
