"""Where samples come from and who gets them.

Importing this needs numpy alone: pyarrow, Pillow, scikit-learn, scipy and huggingface_hub load when a reader needs
them.
"""

from fedga.data.federation import Dataset, Federation
from fedga.data.partitions import PARTITIONS, Partition, PartitionInputs, make_federation
from fedga.data.sources import load_dataset
from fedga.spec.catalog import SOURCES, Source

__all__ = ["PARTITIONS", "SOURCES", "Dataset", "Federation", "Partition", "PartitionInputs", "Source"]
__all__ += ["load_dataset", "make_federation"]
