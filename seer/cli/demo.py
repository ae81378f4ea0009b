"""`seer demo`: a first forecast that needs nothing."""

from __future__ import annotations

from seer.cli.options import DebugOption, JsonOption, QuietOption, VerboseOption
from seer.cli.output import Output, print_json

JOB = "llama3-70b-1024xh100"
NEXT = f"""
try next:
  seer list                                                     what is shipped
  seer forecast {JOB} --set parallelism.tp=8     another plan
  seer forecast llama3-8b --gpus 64 --cluster dgx-h100          a model of your choice
  seer forecast {JOB} --timeline step.json.gz    open it in ui.perfetto.dev
  seer explain {JOB} attention                   from a number to its source"""


def demo(
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Forecast a 1,024-GPU job from shipped data, and say what to try next.

    Example: seer demo
    """
    from seer.forecast import forecast
    from seer.readers.job import opened, resolve
    from seer.reports.forecast_json import to_json

    output = Output(quiet, verbose)
    spec = opened(JOB, {})
    found = forecast(resolve(spec, {}))
    if json:
        print_json(to_json(found, spec.mapping))
        return
    from seer.reports.text import print_forecast

    print_forecast(found, output.console())
    output.warn_of(found)
    output.notice(NEXT)
