package blob

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	cdk "gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
	"golang.org/x/oauth2"
)

// azure is Azure Blob Storage. Its credentials are those that the environment
// has when the process starts, of which Azure's own library renews what expires.
type azure struct {
	client  *container.Client
	blob    *cdk.Bucket
	tokens  *tokens // nil: requests are signed with something that cannot be renewed
	signing string  // how requests are signed
}

var _ vendor = (*azure)(nil)

func connectAzure(l Location, t *transport) (vendor, error) {
	a := &azure{}
	var err error
	client := &http.Client{Transport: t, CheckRedirect: stay}
	if a.client, a.signing, err = azureClient(l, &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport:       client,
		Retry:           policy.RetryOptions{MaxRetries: -1}, // see retry.go
		PerCallPolicies: []policy.Policy{pages{}},
	}}); err != nil {
		return nil, err
	}
	if a.signing == "" {
		if a.tokens, err = azureTokens(); err != nil {
			return nil, err
		}
		client.Transport, a.signing = &signer{a.tokens, t}, "default Azure credential"
	}
	if a.blob, err = azureblob.OpenBucket(context.Background(), a.client, nil); err != nil {
		return nil, err
	}
	return a, nil
}

// azureClient returns a client with the credentials that the environment has, in
// the order in which the vendor's own tools look for them, and their kind: "" if
// there are none, and requests are to be signed with tokens.
func azureClient(l Location, opts *container.ClientOptions) (c *container.Client, signing string, err error) {
	if l.Account == "" && l.Endpoint == "" {
		said := "no storage account is named"
		if account := os.Getenv("AZURE_STORAGE_ACCOUNT"); account != "" {
			said = "the environment names the storage account " + account
		}
		return nil, "", invalid(said + ": add account= to the URL, which says what dataset it is")
	}
	connection := cmp.Or(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"), os.Getenv("AZURE_STORAGEBLOB_CONNECTIONSTRING"))
	if strings.Contains(";"+connection+";", ";AccountName="+l.Account+";") && !l.Anonymous && l.Endpoint == "" {
		if c, err = container.NewClientFromConnectionString(connection, l.Bucket, opts); err != nil {
			return nil, "", invalid("AZURE_STORAGE_CONNECTION_STRING is not one") // and not what it is
		}
		return c, "connection string of account " + l.Account, nil
	}
	account := cmp.Or(l.Account, os.Getenv("AZURE_STORAGE_ACCOUNT"))
	at, err := url.JoinPath(cmp.Or(l.Endpoint, "https://"+account+".blob.core.windows.net"), l.Bucket)
	if err != nil {
		return nil, "", err
	}
	key, sas := os.Getenv("AZURE_STORAGE_KEY"), os.Getenv("AZURE_STORAGE_SAS_TOKEN")
	switch {
	case l.Anonymous:
		c, err = container.NewClientWithNoCredential(at, opts)
		return c, "anonymous", err
	case account != "" && key != "":
		shared, err := azblob.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, "", invalid("AZURE_STORAGE_KEY is not a key in base64") // and not what it is
		}
		c, err = container.NewClientWithSharedKeyCredential(at, shared, opts)
		return c, "shared key of account " + account, err
	case !private(l.Endpoint):
		return nil, "", invalid("the endpoint is not https://, and would be sent a token that anybody can read")
	case sas != "":
		c, err = container.NewClientWithNoCredential(at+"?"+strings.TrimPrefix(sas, "?"), opts)
		return c, "shared access signature", err
	}
	c, err = container.NewClientWithNoCredential(at, opts)
	return c, "", err
}

// azureTokens returns the tokens that the vendor's default credential gets. The
// library would have whoever wants one while another asks wait for as long as that
// takes, whether or not it wants to go away.
func azureTokens() (*tokens, error) {
	t := &tokens{}
	credential, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
		ClientOptions: azcore.ClientOptions{Transport: &http.Client{Transport: &t.way}},
	})
	if err != nil {
		return nil, err
	}
	t.find = func() (oauth2.TokenSource, error) {
		return oauth2.ReuseTokenSourceWithExpiry(nil, azureSource{credential, &t.way}, time.Minute), nil
	}
	return t, nil
}

// An azureSource asks a credential for tokens.
type azureSource struct {
	credential azcore.TokenCredential
	way        *way
}

// Token implements oauth2.TokenSource.
func (s azureSource) Token() (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.Background(), credentialsTimeout)
	defer cancel()
	token, err := s.credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{"https://storage.azure.com/.default"}})
	if err == nil {
		return &oauth2.Token{AccessToken: token.Token, Expiry: token.ExpiresOn}, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if _, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); !ok {
		// There are no credentials. Whether this machine is one of Azure's, which has
		// some, is found out by a request; elsewhere that has no answer.
		s.way.unanswered.Store(nil)
	}
	return nil, err
}

// pages looks whether an answer to a request for keys is a page of them, which
// the portable library takes for granted.
type pages struct{}

// Do implements policy.Policy.
func (pages) Do(r *policy.Request) (*http.Response, error) {
	resp, err := r.Next()
	if err != nil || resp.StatusCode != http.StatusOK || r.Raw().URL.Query().Get("comp") != "list" {
		return resp, err
	}
	body, err := runtime.Payload(resp) // and leaves it to be read again
	if err != nil {
		return nil, err
	}
	if !isPage(body) {
		return nil, errNoListing
	}
	return resp, nil
}

// isPage reports whether a page has its list of keys, and each key what the
// portable library reads of it. Pages are long: this does not decode all of one.
func isPage(body []byte) bool {
	blobs := bytes.Count(body, []byte("<Blob>"))
	for _, property := range []string{"<Last-Modified>", "<Content-Length>"} {
		if bytes.Count(body, []byte(property)) < blobs {
			return false
		}
	}
	for d, depth := xml.NewDecoder(bytes.NewReader(body)), 0; ; {
		token, err := d.Token()
		if err != nil {
			return false
		}
		switch token := token.(type) {
		case xml.StartElement:
			if depth == 1 && token.Name.Local == "Blobs" {
				return true
			}
			depth++
		case xml.EndElement:
			depth--
		}
	}
}

func (a *azure) bucket() *cdk.Bucket { return a.blob }

func (a *azure) list(prefix string) func(as func(any) bool) error {
	return func(as func(any) bool) error {
		var in *container.ListBlobsHierarchyOptions
		if !as(&in) {
			return errNoAs
		}
		in.Prefix = &prefix
		return nil
	}
}

func (a *azure) item(o *cdk.ListObject) item {
	var (
		blob   container.BlobItem
		prefix container.BlobPrefix
	)
	switch {
	case o.IsDir && o.As(&prefix) && prefix.Name != nil:
		return item{key: *prefix.Name, dir: true}
	case !o.IsDir && o.As(&blob) && blob.Name != nil:
		i := item{key: *blob.Name, size: o.Size, mtime: o.ModTime}
		if blob.Properties != nil && blob.Properties.ETag != nil {
			i.version = tag(string(*blob.Properties.ETag))
		}
		return i
	}
	return item{key: o.Key, dir: o.IsDir, size: o.Size, mtime: o.ModTime}
}

// read goes past the portable library, which cannot be kept from escaping keys.
func (a *azure) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	opts := &azblob.DownloadStreamOptions{Range: azblob.HTTPRange{Offset: off, Count: n}}
	if match := azcore.ETag(quoted(version)); match != "" {
		opts.AccessConditions = &azblob.AccessConditions{
			ModifiedAccessConditions: &azblob.ModifiedAccessConditions{IfMatch: &match},
		}
	}
	resp, err := a.client.NewBlobClient(key).DownloadStream(ctx, opts)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (a *azure) version(h http.Header) string { return tag(h.Get("ETag")) }

func (a *azure) failure(err error) (code, text string) {
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return e.ErrorCode, http.StatusText(e.StatusCode)
	}
	if e, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok && e.RawResponse != nil {
		return "AuthenticationFailed", e.RawResponse.Status
	}
	return "", ""
}

func (a *azure) renew(began time.Time) bool {
	if a.tokens == nil {
		return false
	}
	a.tokens.renew(began)
	return true
}

func (a *azure) identity(context.Context) (string, error) { return a.signing, nil }
