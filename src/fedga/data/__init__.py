"""Where samples come from and who gets them. Importing this needs numpy alone; readers load what they need when used."""

from fedga.data.catalog import SOURCES, Source
from fedga.data.federation import Dataset, Federation
from fedga.data.partitions import PARTITIONS, make_federation
from fedga.data.sources import load_dataset

__all__ = ["PARTITIONS", "SOURCES", "Dataset", "Federation", "Source", "load_dataset", "make_federation"]
