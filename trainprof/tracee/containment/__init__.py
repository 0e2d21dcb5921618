"""Keeps a trial's writes away from the user's files: they go to a scratch directory.

The script sees one tree, merged of what is really there and of what it and its children have
changed since the trial began; the changes lie in the scratch directory alone:

    files/<absolute path>   what was written, by the path that the script gave it
    index                   which directories have anything there, and which real names are gone

Every Python process of the trial shares it. Some places are left alone, see zones.py.
"""
