#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
MODEL_ARGS=(
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32
  --seq-length 4096 --max-position-embeddings 4096 --swiglu --vocab-size 32000
)
TRAIN="--micro-batch-size 1 --global-batch-size $((NNODES * 64)) --bf16"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
  "${MODEL_ARGS[@]}" $TRAIN --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2
