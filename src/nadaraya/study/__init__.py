"""Studies: variants × sizes × seeds at matched compute, in a queue that resumes; laws, intervals, verdicts.

study = load_study("experiments/studies/gka.yaml"); `nadaraya study` plans it, runs it and writes the summary.
"""

from nadaraya.study.file import Study, load_study
from nadaraya.study.results import Findings
from nadaraya.study.runs import plan_study, run_study
from nadaraya.study.summary import summarise

__all__ = [
    "Findings",
    "Study",
    "load_study",
    "plan_study",
    "run_study",
    "summarise",
]
