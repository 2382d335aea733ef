"""The command line: a module for each command, imported when it is asked for.

A command is a dataclass whose fields are its options, whose docstring is its help, and whose method
``execute`` does it and returns the exit code. It is the attribute ``command`` of the module of its
name; a dictionary of such classes is a group, such as ``federate init``. Where options depend on
what was typed, as hyper-parameters depend on the method, the module has ``command_for(words)``
instead, which returns the class. A new command also needs a line in `COMMANDS`.
"""

import os
import signal
import sys
from collections.abc import Sequence

from pfedfda.errors import InputError, InterruptedRunError, PfedfdaError, printable
from pfedfda.version import __version__

COMMANDS = {
    "run": "Run one method on a federation.",
    "compare": "Run several methods on one federation and compare them in one table.",
    "tune": "Search the settings of methods on validation samples, with the same budget for each.",
    "reproduce": "Run a table or figure of the paper, and print our numbers beside the paper's.",
    "report": "Write a page with tables and figures about runs.",
    "personalize": "Make a personal model for new images from a finished run.",
    "export": "Write the models of a run's clients, for 'pfedfda predict' or any other program.",
    "predict": "Print the class of images, tables or texts, by a model that was exported.",
    "data": "Prepare a federation, print its sizes and draw what its clients hold.",
    "methods": "List the methods and their hyper-parameters.",
    "check-method": "Check that a method of your own keeps the contract.",
    "datasets": "List the sources of images, the partitions and the paper's federations.",
    "federate": "Begin or check a federation over real sites, on Flower.",
}
"""What each command does; the same as the first line of its docstring, which loads PyTorch."""

USAGE = """\
usage: pfedfda COMMAND [options]

Personalised federated learning on one machine, or over real sites.

commands:
{commands}

examples:
  pfedfda run --method fedavg-ft --clients 50 --alpha 0.3 --rounds 20
  pfedfda compare --methods local fedavg fedavg-ft --source ~/photos --rounds 50
  pfedfda run --config runs/digits-fedavg/config.toml --seed 1
  pfedfda run --resume runs/digits-fedavg
  pfedfda export runs/digits-fedavg --client 3
  pfedfda predict runs/digits-fedavg/models/3 ~/photos --top 3
  pfedfda reproduce table1 --columns cifar10-s@25 --methods fedavg-ft pfedfda --dry-run
  pfedfda report runs/digits-fedavg runs/digits-pfedfda

'pfedfda COMMAND --help' explains a command and its options, 'pfedfda --version' prints the version.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for bad input, 1 for a run that stopped."""
    if arguments is None:
        arguments = sys.argv[1:]
        # A kill by SIGTERM ends a run the way Ctrl-C does: with its results written.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _dispatch(list(arguments))
    except InputError as error:
        complain(error)
        return 2
    except InterruptedRunError as error:
        complain(error)
        return 130
    except PfedfdaError as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        complain(f"A file or folder cannot be used ({error}).")
        return 1


def complain(error: object) -> None:
    """Print a sentence to the error stream, on one line."""
    text = " ".join(str(error).splitlines())
    print(printable(f"pfedfda: {text}"), file=sys.stderr)


def _dispatch(words: list[str]) -> int:
    """Answer what needs no command at once, and leave the rest to the parser."""
    if not words or words[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
        print(USAGE.format(commands=commands), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"pfedfda {__version__}")
        return 0
    from pfedfda.cli.parsing import call

    return call(words)
