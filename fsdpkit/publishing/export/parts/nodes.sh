export FSDPKIT_FORM_NODES=${SLURM_JOB_NUM_NODES-}    # what Slurm gave, whatever was asked for
check FSDPKIT_FORM_NODES Nodes 'a job that Slurm has started' 5 '[1-9][0-9]*'
(( FSDPKIT_FORM_NODES >= @low@ && FSDPKIT_FORM_NODES <= @high@ )) || refuse Nodes "are $FSDPKIT_FORM_NODES" '@low@ to @high@ nodes'
