#!/bin/bash
# One task for each node, on one node or on several. The program reads TF_CONFIG:
#   sbatch --nodes=1 docker/slurm.sh docker/program.py
#   sbatch --nodes=4 --gpus-per-node=2 docker/slurm.sh docker/program.py
#SBATCH --job-name=autodist-keras
#SBATCH --ntasks-per-node=1
set -euo pipefail

# Activate the environment here, on a disk that all nodes see: source ~/venv/bin/activate
AUTODIST_SECRET=$(openssl rand -hex 32)
WORKERS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/.*/"&:8888"/' | paste -sd,)
export AUTODIST_SECRET WORKERS

# SLURM gives each task the number of its node, in the order of scontrol.
srun --kill-on-bad-exit=1 bash -c '
    export TF_CONFIG="{\"cluster\": {\"worker\": [$WORKERS]}, \"task\": {\"type\": \"worker\", \"index\": $SLURM_NODEID}}"
    exec python "$@"' task "$@"
