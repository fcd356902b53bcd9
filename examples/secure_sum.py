"""Sum the vectors of five clients. One of them drops out, and the server learns only the total."""

import numpy as np

import secagg

vectors = [np.full(3, 0.1 * client) for client in range(5)]
result = secagg.sum_securely(
    vectors,
    bound=secagg.LInf(1.0),
    bits=32,
    params=secagg.SessionParams(trust=secagg.Trust.MALICIOUS, corrupt=1),
    missing=[2],
)
print(f"{result.count} of {len(vectors)} clients contributed; their sum is {result.values.round(6)}")
