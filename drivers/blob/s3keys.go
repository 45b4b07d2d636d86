package blob

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// XML cannot represent every character of a key, so listings of S3 are requested with encoded keys. Amazon
// encodes them like the query of a URL, with "+" for a space. Other stores leave "+" as it is, or say that they
// have encoded the keys, and have not: then "a+b" is another key. The store is asked which one it has.

// A codec is a way to encode keys. It decodes one.
type codec func(encoded string) (key string, err error)

// allCodecs has the codecs in the order in which they are tried.
var allCodecs = []codec{
	url.QueryUnescape,
	url.PathUnescape, // "+" is itself
	func(encoded string) (string, error) { return encoded, nil },
}

// maxUnknownKeys is the number of keys after which a keyDecoder gives up, because the store lists none of them again.
const maxUnknownKeys = 3

// A keyDecoder decodes the keys of a store. Its methods may be called concurrently.
type keyDecoder struct {
	mu       sync.Mutex // guards the following
	possible []codec    // by what was listed so far; never empty
	unknown  int        // keys that decided nothing
}

// codecs returns those that the store may have, at least one.
func (d *keyDecoder) codecs() []codec {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.possible
}

// keep excludes the codecs that do not satisfy ok, unless none does.
func (d *keyDecoder) keep(ok func(codec) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if left := slices.DeleteFunc(slices.Clone(d.possible), func(c codec) bool { return !ok(c) }); len(left) > 0 {
		d.possible = left
	}
}

// meanings returns the keys that a listed key may stand for. They begin with prefix.
func (d *keyDecoder) meanings(encoded, prefix string) (keys []string) {
	d.keep(func(c codec) bool { key, err := c(encoded); return err == nil && strings.HasPrefix(key, prefix) })
	for _, c := range d.codecs() {
		if key, err := c(encoded); err == nil && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// learn finds out what a key stands for that is listed with a prefix. isListed reports whether the store lists a key in
// this form.
func (d *keyDecoder) learn(encoded, prefix string, isListed func(key string) (bool, error)) error {
	if len(d.codecs()) == 1 || !strings.ContainsAny(encoded, "%+") {
		return nil
	}
	keys := d.meanings(encoded, prefix)
	if len(keys) == 1 {
		return nil
	}
	// The listing of a key has those that begin with it: the longest one first.
	slices.SortStableFunc(keys, func(a, b string) int { return len(b) - len(a) })
	for _, key := range keys {
		listed, err := isListed(key)
		if err != nil {
			return err
		}
		if listed {
			d.keep(func(c codec) bool { k, err := c(encoded); return err == nil && k == key })
			return nil
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unknown++; d.unknown == maxUnknownKeys {
		d.possible = d.possible[:1]
	}
	return nil
}

// decode decodes the keys of a page that was requested with a prefix. A key that cannot be decoded stays as it is.
func (a *amazon) decode(ctx context.Context, prefix string, p *page) error {
	for _, i := range p.items {
		err := a.keys.learn(i.key, prefix, func(key string) (bool, error) { return a.isListed(ctx, key, i.key) })
		if err != nil {
			return err
		}
	}
	decode := a.keys.codecs()[0]
	for i := range p.items {
		if key, err := decode(p.items[i].key); err == nil {
			p.items[i].key = key
		}
	}
	plus, err := decode("+")
	p.misencoded = err == nil && plus == "+"
	return nil
}

// isListed reports whether the store lists a key as encoded, or, if it is a directory, a key in it. Some stores do not
// list such a prefix, and some policies forbid it.
func (a *amazon) isListed(ctx context.Context, key, encoded string) (bool, error) {
	out, err := a.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
		Bucket: &a.bucket, Prefix: &key, EncodingType: types.EncodingTypeUrl, RequestPayer: a.payer,
	})
	if t, ok := ctx.Value(traceKey{}).(*trace); ok && err != nil {
		if e := classify(a, t, err); !e.retryable && !e.refresh {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(out.Contents, func(o types.Object) bool {
		listed := aws.ToString(o.Key)
		return listed == encoded || strings.HasSuffix(key, "/") && strings.HasPrefix(listed, encoded)
	}), nil
}
