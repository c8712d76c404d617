"""kvtier.v1, the contract, as protoc generates it. client/python/make_protocol.sh makes it."""
