"""MindSpore TroubleShooter's calls: `fix_random`, the dumps of `migrator.api_dump_*`, the weights of `migrator`.

    api_dump.py     api_dump_init, api_dump_start, api_dump_stop: a net's calls as files
    api_compare.py  api_dump_compare: two such folders, as three tables
    names.py        what a dump calls the calls of a network, and which of them it is about
    dumping.py      the files of a dump, written while the network runs
    dumps.py        and read again, those of TroubleShooter itself included
    tables.py       the tables that it prints and the csv files that it writes, for every call that compares
    weights.py      get_weight_map, convert_weight, compare_ms_ckpt and their like: weights carried across by a file
    arrays.py       compare_npy_dir and its like: directories of saved arrays
    saving.py       ts.save, ts.save_grad
    finder.py       NetDifferenceFinder
    problems.py     what these refuse

`troubleshooter` and `troubleshooter.migrator` re-export what is here, name by name.
"""
