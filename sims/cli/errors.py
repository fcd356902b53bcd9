"""What the command line tells its user instead of a traceback."""


class UserError(Exception):
    """Something the user can put right: its text is the one sentence that the user sees."""
