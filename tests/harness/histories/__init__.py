"""Random workloads on a broker, their recorded histories, and a checker without code of the
package.
"""
