"""How near the logits of a session and of a plain forward pass are."""

import torch

# Largest difference from the next-token logits of a plain forward pass, in standard deviations of those logits.
# Chunks change the order in which sums are rounded, as does another kernel. Measured over 28 layers: 2e-6, 4e-3, 5e-2
# (weights of deviation 0.02), 1e-5, 1e-2, 8e-2 (0.06); the plain pass itself is off float32 by as much and more.
LOGIT_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}
