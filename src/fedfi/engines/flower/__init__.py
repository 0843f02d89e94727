"""The engine of many machines: clients live on the nodes of a Flower federation.

`wire` turns packets into Flower's records and back, `roster` knows which node holds which client, `engine` sends the
jobs of a round and gathers their replies, `node` does them where the data are, `disk` keeps what a client remembers.
`door` is the one file that imports Flower.
"""
