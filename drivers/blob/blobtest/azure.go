package blobtest

import (
	"context"
	"os/exec"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The default account of Azurite. Its key is public: it is in Azurite's manual.
const (
	azureAccount = "devstoreaccount1"
	azureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// startAzure starts Azurite. The first element of a path is the account.
func startAzure(t testing.TB) *Server {
	t.Helper()
	drivertest.Need(t, "azurite-blob")
	path := program(t, "azurite-blob")
	s := &Server{Kind: Azure}
	s.URL = "http://" + launch(t, func(host, port string) *exec.Cmd {
		cmd := exec.Command(path, "--blobHost", host, "--blobPort", port, "--inMemoryPersistence",
			"--silent", "--disableTelemetry", "--skipApiVersionCheck", "--disableProductStyleUrl")
		cmd.Dir = t.TempDir()
		return cmd
	})
	return s
}

// An azureStore is the store of a server of Azure Blob Storage.
type azureStore struct{ client *azblob.Client }

func newAzureStore(t testing.TB, endpoint string) *azureStore {
	t.Helper()
	credential, err := azblob.NewSharedKeyCredential(azureAccount, azureKey)
	if err != nil {
		t.Fatalf("decode the key of %s: %v", azureAccount, err)
	}
	opts := &azblob.ClientOptions{ClientOptions: policy.ClientOptions{Transport: httpClient(t)}}
	client, err := azblob.NewClientWithSharedKeyCredential(endpoint+"/"+azureAccount, credential, opts)
	if err != nil {
		t.Fatalf("make a client of %s: %v", endpoint, err)
	}
	return &azureStore{client}
}

func (s *azureStore) makeBucket(ctx context.Context, bucket string) error {
	_, err := s.client.CreateContainer(ctx, bucket, nil)
	return err
}

func (s *azureStore) put(ctx context.Context, bucket, key string, data []byte) error {
	_, err := s.client.UploadBuffer(ctx, bucket, key, data, nil)
	return err
}

func (s *azureStore) remove(ctx context.Context, bucket, key string) error {
	_, err := s.client.DeleteBlob(ctx, bucket, key, nil)
	return err
}

func (s *azureStore) keys(ctx context.Context, bucket string) ([]string, error) {
	var keys []string
	pages := s.client.NewListBlobsFlatPager(bucket, nil)
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Segment.BlobItems {
			keys = append(keys, *item.Name)
		}
	}
	return keys, nil
}
