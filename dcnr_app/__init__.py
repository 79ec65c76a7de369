"""dcnr-app: the Distributed Composable Neural Runtime."""

__version__ = "0.1.0"
