"""The one way in which popflow turns down a user's file, table or setting."""


class Refusal(Exception):
    """A user's mistake, told in one message: where, what was found, what is accepted, the fix.

    The command line and the job scripts print it without a stack trace and exit with 1.

    Parameters
    ----------
    where : str
        File, and row, column or field in it, e.g. ``"samples.tsv, row 3, column 'path'"``.
    found : str
        What was found there.
    accepted : str
        What would be accepted instead.
    fix : str
        The line or action that mends it.
    """

    def __init__(self, where: str, found: str, accepted: str, fix: str):
        self.where, self.found, self.accepted, self.fix = where, found, accepted, fix
        super().__init__(where, found, accepted, fix)

    def __str__(self) -> str:
        return f"{self.where}: {self.found}\n  accepted: {self.accepted}\n  to fix it: {self.fix}"


class Refusals(Exception):
    """Several refusals at once, so that a user mends a configuration in one go.

    Parameters
    ----------
    refusals : list of Refusal
    """

    def __init__(self, refusals: list[Refusal]):
        self.refusals = list(refusals)
        super().__init__(self.refusals)

    def __str__(self) -> str:
        return "\n".join(str(refusal) for refusal in self.refusals)
