"""The CORE metric of DCLM (Li et al. 2024) by nanochat's rules: tasks, prompts, decisions, figures."""

from nadaraya.evaluation.core.export import write_lm_eval_tasks
from nadaraya.evaluation.core.metric import CoreEvaluation, TaskResult, evaluate_core, evaluate_task
from nadaraya.evaluation.core.prompts import Prompt, core_prompts, few_shot_rows
from nadaraya.evaluation.core.scoring import Decision
from nadaraya.evaluation.core.tasks import CORE_TASKS, CoreTask, read_core

__all__ = [
    "CORE_TASKS",
    "CoreEvaluation",
    "CoreTask",
    "Decision",
    "Prompt",
    "TaskResult",
    "core_prompts",
    "evaluate_core",
    "evaluate_task",
    "few_shot_rows",
    "read_core",
    "write_lm_eval_tasks",
]
