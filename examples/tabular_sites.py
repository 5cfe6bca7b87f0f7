"""A table whose rows lie at three sites: FedAvg against FedGA with `FedGAClassifier`, and what the sites forget.

Needs scikit-learn (pip install '.[data]'). The wines that ship with it: 13 measures, three cultivars, of which no
site has all. Both algorithms end at the same accuracy here; look at what local training costs on the way.
"""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.metrics import balanced_accuracy_score, recall_score
from sklearn.model_selection import train_test_split

from fedga import FedGAClassifier

wines = load_wine()
X, X_test, y, y_test = train_test_split(wines.data, wines.target, test_size=0.4, stratify=wines.target, random_state=0)
even = np.arange(len(y)) % 2 == 0
site = np.where(y == 0, "north", np.where(y == 1, np.where(even, "north", "south"), np.where(even, "south", "west")))

for algorithm in ("fedavg", "fedga"):
    classifier = FedGAClassifier(algorithm, rounds=10, diagnose_every=1, random_state=0)
    classifier.fit(X, y, groups=site)
    predicted = classifier.predict(X_test)
    print(f"{algorithm}: balanced accuracy {balanced_accuracy_score(y_test, predicted):.3f}, ", end="")
    print("recall of each class", recall_score(y_test, predicted, average=None).round(3))
    later = [row for row in classifier.site_history_ if row["round"] > 1]  # the first model knows nothing to forget
    worst = min(later, key=lambda row: row["recall_after"] - row["recall_before"])
    print(
        f"  most forgotten: class {worst['class']} at {worst['site']}, which has {worst['samples']} rows of it: recall "
        f"{worst['recall_before']:.2f} before its training in round {worst['round']}, {worst['recall_after']:.2f} after"
    )

print("rows of each class at each site (the server of a real federation does not see them):")
for name, counts in zip(classifier.site_names_, classifier.class_counts_, strict=True):
    print(f"  {name:10}", *counts)
