"""Studies: variants × sizes × seeds at matched compute, in a queue that resumes; laws, intervals, verdicts.

study = load_study("experiments/studies/gka.yaml"); `nadaraya study` plans it, runs it and writes the summary.
"""

from nadaraya.study.file import Study, load_study
from nadaraya.study.plan import Cell
from nadaraya.study.queue import Ended, Job, run_queue
from nadaraya.study.results import Findings
from nadaraya.study.runs import Session, plan_study, run_study
from nadaraya.study.statistics import PowerLaw, fit_power_law
from nadaraya.study.summary import Summary, summarise

__all__ = [
    "Cell",
    "Ended",
    "Findings",
    "Job",
    "PowerLaw",
    "Session",
    "Study",
    "Summary",
    "fit_power_law",
    "load_study",
    "plan_study",
    "run_queue",
    "run_study",
    "summarise",
]
