"""Five thousand whole answers, frozen, so that a change of the house is seen to change none of them.

``setups.jsonl`` has a setup a line, with a digest of each part of its answer. The setups are drawn over every model
family, GPU, objective, strategy, method and key (``draw``); some are refused, and the sentence is their answer.

usage: python -m tests.corpus check [COUNT]       as many setups, spread evenly (all), answer as it is written
       python -m tests.corpus write               write the digests of today's answers
       python -m tests.corpus draw COUNT          draw the setups anew, then write
       python -m tests.corpus against REV [COUNT] answer with another revision, too, and print every value that differs
"""
