"""The layout of a run's folder: the names of its files and the columns of its tables."""

CONFIG = "config.toml"
METRICS = "metrics.jsonl"
FAILURES = "failures.jsonl"
CLIENTS = "clients.csv"
NEW_CLIENTS = "new_clients.csv"
SUMMARY = "summary.json"
MISTAKES = "mistakes.json"
FEDERATION = "federation.json"
COMPARISON = "comparison.csv"
SEEDS = "seeds.csv"
PAIRS = "pairs.csv"
TRIALS = "trials.jsonl"
SEARCH = "search.json"  # what a search was asked for
TUNING = "tuning.csv"  # what came out of it
CHECKPOINT = "checkpoint"
ROSTER = "roster.json"  # of a run over sites
MANIFEST = "manifest.json"  # in the folder of the checkpoint

LOGS = (METRICS, FAILURES)  # they grow by lines, and a checkpoint knows how long they were
CLIENT_COLUMNS = ("client", "name", "train_samples", "test_samples", "classes", "accuracy")
QUALITY_COLUMNS = ("balanced_accuracy", "nll", "brier", "ece")  # of a client, after its accuracy
NEW_CLIENT_COLUMNS = ("client", "condition", "test_samples", "accuracy")
TRAFFIC = ("bytes_up", "bytes_down")
TRAFFIC_PER_ROUND = ("bytes_up_per_round", "bytes_down_per_round")
PRIVACY = ("epsilon", "epsilon_budget", "delta", "clip", "noise_multiplier", "clients")
