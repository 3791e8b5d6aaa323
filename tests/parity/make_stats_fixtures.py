"""Writes tests/golden/stats/stats.json: inputs and expected answers of common/stats, computed by
scipy, statsmodels and scikit-learn (and numpy where those have no such function).

usage: make_stats_fixtures.py OUT_FILE        needs: numpy, scipy, statsmodels, scikit-learn
       make_stats_fixtures.py --check FILE    compares anew to a relative 1e-9

Every input is drawn from a fixed generator; nothing depends on the order of other cases.
"""
import json
import math
import sys
import warnings

import numpy as np
import scipy.optimize
import scipy.stats as st
from sklearn.metrics import mutual_info_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_ind, ttost_paired


def rng(seed):
    return np.random.default_rng(seed)


def paired():
    cases = []
    for n, shift, scale in [(2, 0.1, 1), (3, 0.02, 0.01), (5, -0.4, 0.3), (8, 0, 1), (30, 1e-6, 1e-7), (200, 0.05, 1)]:
        g = rng(n)
        a, b = g.normal(3 + shift, scale, n), g.normal(3, scale, n)
        t = st.ttest_rel(a, b)
        ci = t.confidence_interval(0.95)
        margin = abs(a - b).max() * 0.8
        _, low, high = ttost_paired(a, b, -margin, margin)
        cases.append(dict(a=a.tolist(), b=b.tolist(), t=t.statistic, p=t.pvalue, low=ci.low, high=ci.high, margin=margin,
                          tost_p=max(low[1], high[1]), correlation=float(np.corrcoef(a, b)[0, 1])))
    return cases


def welch():
    cases = []
    for na, nb, sa, sb in [(2, 3, 1, 1), (3, 3, 0.1, 0.2), (5, 9, 2, 0.5), (40, 25, 1, 3)]:
        g = rng(100 * na + nb)
        a, b = g.normal(0.3, sa, na), g.normal(0, sb, nb)
        t = st.ttest_ind(a, b, equal_var=False)
        ci = t.confidence_interval(0.95)
        margin = 1.5 * abs(a.mean() - b.mean()) + 0.1
        _, low, high = ttost_ind(a, b, -margin, margin, usevar="unequal")
        cases.append(dict(a=a.tolist(), b=b.tolist(), t=t.statistic, p=t.pvalue, df=t.df, low=ci.low, high=ci.high, margin=margin,
                          tost_p=max(low[1], high[1])))
    return cases


def wilcoxon():
    cases = []
    for n, ties, zeros in [(5, 0, 0), (8, 0, 0), (20, 0, 0), (50, 0, 0), (51, 0, 0), (12, 1, 0), (15, 0, 3), (30, 1, 4)]:
        d = rng(n).normal(0.3, 1, n)
        if ties:
            d = np.round(d, 1)
            d[d == 0] = 0.1
        d[:zeros] = 0
        exact = n <= 50 and not ties and not zeros
        r = st.wilcoxon(d, zero_method="wilcox", correction=False, method="exact" if exact else "asymptotic")
        cases.append(dict(d=d.tolist(), statistic=r.statistic, p=r.pvalue, exact=exact))
    return cases


def mcnemar():
    return [dict(b=b, c=c, p=st.binomtest(b, b + c, 0.5).pvalue) for b, c in [(12, 4), (0, 5), (7, 7), (1, 30), (200, 260)]]


def adjust():
    cases = []
    for p in ([.001, .008, .039, .041, .042], rng(7).uniform(0, 1, 12).tolist(), (rng(8).uniform(0, 1, 40) ** 4).tolist(), [0.03], [0.2, 0.2, 0.2]):
        cases.append(dict(p=p, **{k: multipletests(p, method=m)[1].tolist() for k, m in (("holm", "holm"), ("bh", "fdr_bh"), ("by", "fdr_by"))}))
    return cases


def quantiles():
    x = np.sort(rng(9).normal(0, 1, 37))
    return [dict(x=x.tolist(), q=q, value=float(np.quantile(x, q))) for q in (0, 0.025, 0.31, 0.5, 0.975, 1)]


def bootstrap():
    cases = []
    for n in (3, 12, 40):
        g = rng(n)
        x = g.normal(0.2, 1, n)
        index = g.integers(0, n, (60, n))
        means = [float(np.sum(x[row]) / n) for row in index]
        low, high = np.quantile(means, [0.025, 0.975])
        cases.append(dict(x=x.tolist(), index=index.tolist(), low=float(low), high=float(high)))
    return cases


def permutation():
    cases = []
    for n in (3, 5, 8, 12):
        d = rng(n).normal(0.5, 1, n)
        r = st.permutation_test((d,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples", n_resamples=np.inf,
                                alternative="two-sided", vectorized=True)
        # scipy's two-sided p doubles the smaller tail; the flips are symmetric, so both agree.
        cases.append(dict(d=d.tolist(), p=float(r.pvalue)))
    return cases


def labels():
    cases = []
    for na, nb in ((3, 3), (4, 4), (3, 6)):
        g = rng(10 * na + nb)
        a, b = g.normal(0.8, 1, na), g.normal(0, 1, nb)
        pool = np.concatenate([a, b])
        observed = abs(a.mean() - b.mean())
        import itertools
        hits = total = 0
        for chosen in itertools.combinations(range(na + nb), na):
            mask = np.zeros(na + nb, bool)
            mask[list(chosen)] = True
            hits += abs(pool[mask].mean() - pool[~mask].mean()) >= observed - 1e-12
            total += 1
        cases.append(dict(a=a.tolist(), b=b.tolist(), p=hits / total))
    return cases


def power():
    t = TTestPower()
    cases = []
    for n, effect, alpha in [(3, 1, .05), (5, .5, .05), (10, 1, .05), (34, .5, .05), (6, 1.5, .01), (20, .1, .05), (4, 3, .05)]:
        two_sided = t.power(effect, n, alpha, alternative="two-sided")
        # One tail only in some releases of statsmodels: both are summed here.
        crit = st.t.ppf(1 - alpha / 2, n - 1)
        both = st.nct.sf(crit, n - 1, effect * math.sqrt(n)) + st.nct.cdf(-crit, n - 1, effect * math.sqrt(n))
        assert abs(both - two_sided) < 1e-4, (n, effect, both, two_sided)
        cases.append(dict(n=n, effect=effect, alpha=alpha, power=float(both)))
    return cases


def pilot():
    return [dict(n=n, factor=float(math.sqrt((n - 1) / st.chi2.ppf(.2, n - 1)))) for n in (3, 4, 5, 8, 10)]


def information():
    cases = []
    for n, g, e, mix in [(200, 4, 6, .5), (2000, 16, 16, 0), (50, 3, 2, .9), (1000, 8, 64, .2)]:
        r = rng(n + g)
        group = r.integers(0, g, n)
        expert = np.where(r.uniform(size=n) < mix, group % e, r.integers(0, e, n))
        table = contingency_matrix(group, expert)
        cases.append(dict(group=group.tolist(), expert=expert.tolist(), groups=g, experts=e, mi=mutual_info_score(group, expert),
                          nmi=normalized_mutual_info_score(group, expert, average_method="arithmetic"),
                          emi=float(expected_mutual_information(table, n))))
    return cases


def assignment():
    cases = []
    for rows, cols in [(1, 1), (4, 4), (5, 9), (9, 5), (12, 12)]:
        c = rng(rows * 20 + cols).uniform(-1, 1, (rows, cols))
        i, j = scipy.optimize.linear_sum_assignment(c)
        cases.append(dict(rows=rows, cols=cols, cost=c.ravel().tolist(), total=float(c[i, j].sum())))
    ties = rng(1).integers(0, 3, (8, 8)).astype(float)
    i, j = scipy.optimize.linear_sum_assignment(ties)
    cases.append(dict(rows=8, cols=8, cost=ties.ravel().tolist(), total=float(ties[i, j].sum())))
    return cases


def close(a, b, path=""):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for k in a:
            close(a[k], b[k], f"{path}.{k}")
    elif isinstance(a, list):
        assert len(a) == len(b), path
        for n, (x, y) in enumerate(zip(a, b)):
            close(x, y, f"{path}[{n}]")
    elif isinstance(a, float) or isinstance(b, float):
        assert abs(a - b) <= 1e-9 * max(1e-30, abs(a), abs(b)) + 1e-15, f"{path}: {a} and {b}"
    else:
        assert a == b, f"{path}: {a} and {b}"


def main():
    warnings.simplefilter("ignore")
    makers = [paired, welch, wilcoxon, mcnemar, adjust, quantiles, bootstrap, permutation, labels, power, pilot, information, assignment]
    data = json.loads(json.dumps({f.__name__: f() for f in makers}, default=float))
    if sys.argv[1] == "--check":
        close(json.load(open(sys.argv[2])), data)
        print("equal")
    else:
        with open(sys.argv[1], "w") as out:
            out.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in data.items()) + "\n}\n")


if __name__ == "__main__":
    main()
