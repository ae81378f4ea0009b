#!/usr/bin/env bash
# Fit the shipped calibrations. Needs the measurement files: make.sh FOLDER DATE
set -euo pipefail
S=${1:-../shared/data/calibration}
DATE=${2:-2026-11-30}
# The stack aic_sgl_torch answers first: on A100 it agrees with the only sustained measurement
# (10,000 warm-up runs, random data: 251-257 TFLOP/s beside 246-248), others are faster bursts.
seer fit "$S"/gemm/a100_sxm.csv "$S"/linear_train/a100_sxm.csv "$S"/gemm_train_layouts/a100_pcie.csv \
  "$S"/attention/a100_sxm_fwd.csv "$S"/attention/a100_sxm_train.csv \
  "$S"/attention_unfused/a100_sxm.csv "$S"/membound/a100_sxm.csv "$S"/membound/a100_sxm_train.csv \
  "$S"/membound/babelstream_peaks.csv "$S"/vocab_ops/a100_sxm.csv "$S"/fused_ops/a100_sxm.csv \
  "$S"/collectives/a100_sxm.csv "$S"/collectives/h100_sxm.csv "$S"/collectives/gh200.csv \
  -o calibration/a100-sxm.json --device a100-sxm --prefer aic_sgl_torch --date "$DATE"
seer fit "$S"/gemm/h100_sxm.csv "$S"/gemm_train_layouts/a100_pcie.csv \
  "$S"/attention/h100_sxm_fwd.csv "$S"/attention/h200_sxm_train.csv "$S"/membound/h100_sxm.csv \
  "$S"/membound/babelstream_peaks.csv "$S"/fused_ops/h100_sxm.csv "$S"/collectives/h100_sxm.csv \
  "$S"/collectives/gh200.csv \
  -o calibration/h100-sxm.json --device h100-sxm --prefer aic_sgl_torch --date "$DATE"
