"""Every request's metadata, written down so that no crash loses or doubles what is billed; never its text.

`backend` sees requests and answers, `entry` is what is known of one, `ledger` decides when something is written and
who waits for it, `writer` collects what is to be written into few transactions in a thread of its own, `store` is their
SQL, `spool` a file for the time in which the database fails. `reports` and `retention` read and shorten what is there.
"""
