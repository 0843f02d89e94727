"""Grids of experiments: methods x settings x seeds, as the papers' tables have them; `fedfi reproduce`.

| file | what it does |
|---|---|
| `places` `names` | where the grids lie that come with fedfi, and what each is called |
| `gridfile` `paper` `grid` | a grid file: read, checked, expanded into runs |
| `jobs` | what is there already, and what is missing |
| `performing` `followers` `predictions` | one run, and what is kept of it |
| `tuning` `running` | all of them, side by side |
| `tables` `heading` `collecting` | what came of them, beside the paper's figures |
"""
