"""Random workloads on a broker, recorded, and a checker that knows no code of ours."""
