package drivers

// An ExchangeState is how far a node is in the exchange of partial local shuffling, in which each
// epoch gives the nodes other files to hold. The zero value is that of a node without an exchange.
type ExchangeState struct {
	ID       string `json:"id"`       // identifies the files, the nodes and the seed; nodes with the same ID have the same plan
	Epoch    int64  `json:"epoch"`    // that the node is in, from 0
	Received bool   `json:"received"` // the node has copies of all files that it holds in Epoch
}
