"""The command line's entrance: finds commands by name and imports only the one that is asked for."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Mapping
from typing import Any

import click

from dcnr_app import __version__
from dcnr_app.errors import DcnrError

INTERRUPTED = 130

# name -> (module, one-line help); the module has a click command called `command`
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo", "Train a small model on this machine, from nothing to a sample."),
    "train": ("train", "Train a network on a dataset."),
    "network": ("network", "Validate, show and plan networks."),
    "tokenizer": ("tokenizer", "Train and use tokenizers."),
    "dataset": ("dataset", "Prepare and show datasets."),
    "session": ("session", "List, show, resume and stop training sessions."),
    "checkpoint": ("checkpoint", "List, verify and remove checkpoints."),
    "generate": ("generate", "Write text with a checkpoint."),
    "monitor": ("monitor", "Follow a session as JSON lines."),
    "chaos": ("chaos", "Train while processes are killed, and report what it did."),
    "limits": ("limits", "Show and set what this machine's owner lets the app use, and when."),
    "doctor": ("doctor", "Check what keeps this machine from working with others."),
    "up": ("up", "Run this machine's agent, so that machines can form a cluster."),
    "down": ("down", "End this machine's agent."),
    "status": ("status", "Show what this machine is and does."),
    "discover": ("discover", "List machines heard on the local network."),
    "join": ("join", "Take this machine into a cluster."),
    "invite": ("invite", "Make a link or code with which one machine may join."),
    "admit": ("admit", "Let a machine that wants to join in."),
    "reject": ("reject", "Keep a machine that wants to join out."),
    "pnode": ("pnode", "List, rename, drain and forget the cluster's PNodes."),
    "paths": ("paths", "Show where everything is kept."),
    "version": ("version", "Show the version."),
}
HIDDEN: Mapping[str, str] = {
    "pnode-process": "pnode_process",
    "session-process": "session_process",
    "chaos-process": "chaos_process",
}


class LazyGroup(click.Group):
    """A group whose commands are modules of this folder, imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None."""
        module = HIDDEN.get(cmd_name) or COMMANDS.get(cmd_name, ("", ""))[0]
        if not module:
            return None
        found: click.Command = importlib.import_module(f"dcnr_app.cli.{module}").command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list from the table above, so that `--help` imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a misspelt command."""
        if args and args[0] not in COMMANDS and args[0] not in HIDDEN:
            from dcnr_app.nodes.graph.spelling import did_you_mean

            ctx.fail(f"no such command {args[0]!r}. {did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="dcnr-app")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Train a transformer, written in YAML, on the machines you already own."""
    if ctx.invoked_subcommand is None:
        from dcnr_app.cli.status import show_status

        show_status()


def main() -> None:
    """Run the command line and exit with the documented code: 0 ok, 2 usage, see README for the others."""
    from dcnr_app.cli.output import fill_closed_streams

    fill_closed_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code. Errors of ours are told in their own words, on stderr."""
    from dcnr_app.cli.output import give_up, say
    from dcnr_app.settings import quiet_libraries

    quiet_libraries()
    try:
        result: Any = root.main(args=arguments, prog_name="dcnr-app", standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        shown = io.StringIO()  # where stderr is closed, click would take stdout
        error.show(file=shown)
        say(shown.getvalue().rstrip("\n"))
        return error.exit_code
    except DcnrError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        give_up(sys.stderr)  # the reader has gone: nothing more can be said
        return 0
    except OSError as error:
        if error.filename is not None:
            raise
        give_up(sys.stdout)  # only a stream has no name: this is click's own text, as of --help
        say(f"error: stdout: {error.strerror}")
        return 1
    return result if isinstance(result, int) else 0
